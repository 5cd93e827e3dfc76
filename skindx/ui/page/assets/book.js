// The case book: what is written and not saved is kept or asked about, and the place is in the address.
const at = (selector) => element.querySelector(selector);
let search = "", restoring = false;

function isChanged(field) {
  if (field.type === "checkbox") return field.checked !== field.defaultChecked;
  if (field.options) return field.selectedIndex !== Math.max(0, [...field.options].findIndex((option) => option.defaultSelected));
  return field.type !== "hidden" && field.value !== undefined && field.value !== field.defaultValue;
}
const unsaved = () => [...element.querySelectorAll("form[data-written]")].filter((form) => [...form.elements].some((field) => field.tagName !== "BUTTON" && isChanged(field)));
function mayDiscard(forms) {
  if (forms.length && !confirm("What you wrote about this case is not saved. Discard it?")) return false;
  for (const form of forms) form.reset(); // a reply that changes nothing is not shown anew
  return true;
}

// Before the listener of all forms of the page.
element.addEventListener("submit", (event) => {
  restoring = false;
  if (mayDiscard(unsaved().filter((form) => form !== event.target))) return;
  event.preventDefault();
  event.stopImmediatePropagation();
}, true);
let leaving = false;
document.addEventListener("skindx-leaving", () => { leaving = true; });
window.addEventListener("beforeunload", (event) => { if (!leaving && unsaved().length) event.preventDefault(); });

// The tab is opened, or Back leads here: what was being written stays.
function open() {
  const [, first = "", last = ""] = /^#book=([0-9a-f]*),?([0-9a-f]*)/.exec(location.hash) ?? [];
  if (unsaved().length && at("[data-place]").dataset.place === location.hash) return;
  if (!mayDiscard(unsaved())) { history.pushState({ ...history.state }, "", at("[data-place]").dataset.place); return; }
  restoring = true;
  trigger("act", { action: "open", first, last });
}
document.addEventListener("skindx-book", open);

function find() {
  for (const lesion of element.querySelectorAll(".sx-lesions li")) lesion.hidden = !lesion.textContent.toLowerCase().includes(search);
  const left = element.querySelectorAll(".sx-lesions li:not([hidden])").length;
  if (at(".sx-search-found")) at(".sx-search-found").textContent = search ? `${left} found` : "";
}
element.addEventListener("input", ({ target }) => { if (target.matches(".sx-search")) { search = target.value.trim().toLowerCase(); find(); } });

watch("value", () => {
  const place = at("[data-place]")?.dataset.place, replaces = restoring;
  restoring = false;
  if (at(".sx-search") && search) { at(".sx-search").value = search; find(); }
  if (!place || place === location.hash || !location.hash.startsWith("#book")) return;
  history[replaces ? "replaceState" : "pushState"]({ ...history.state }, "", place);
});
