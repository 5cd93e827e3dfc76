// The case book: what is written and not saved is kept or asked about, and the place is in the address.
const at = (selector) => element.querySelector(selector);
let search = "", only = "", state = "", all = false, restoring = false, chose = false;

function isChanged(field) {
  if (field.matches("[data-clinician]")) return false; // filled in from the last diagnosis
  if (field.type === "checkbox") return field.checked !== field.defaultChecked;
  if (field.options) return field.selectedIndex !== Math.max(0, [...field.options].findIndex((option) => option.defaultSelected));
  return field.type !== "hidden" && field.value !== undefined && field.value !== field.defaultValue;
}
// What is written and not sent, by case: a reply writes the page anew, and takes none of it away.
const typed = new Map();
const nameOf = (form) => form.elements.case.value + form.dataset.written + (form.dataset.part ?? ""); // a case has several such forms
function noted({ target }) {
  const form = target.closest?.("form[data-written]");
  if (form) typed.set(nameOf(form), [...form.elements].filter((field) => field.name && isChanged(field)).map(({ name, value, checked }) => [name, value, checked]));
}
element.addEventListener("input", noted);
element.addEventListener("change", noted);
function request(fields) {
  typed.clear();
  trigger("act", fields);
}
const unsaved = () => [...element.querySelectorAll("form[data-written]")].filter((form) => [...form.elements].some((field) => field.tagName !== "BUTTON" && isChanged(field)));
// What waits until each written form is saved or discarded.
let next = null, saving = false;
function ask(go, stay = () => {}) {
  next = { go, stay };
  at(".sx-leaving").showModal();
  at(".sx-leaving [data-save]").focus();
}
function goOn() {
  const left = unsaved()[0];
  if (left) { saving = true; left.requestSubmit(left.querySelector(`[value=${left.dataset.written}]`)); return; }
  const { go, saved } = next;
  next = null;
  go(saved);
}
element.addEventListener("click", ({ target }) => {
  const sure = target.closest(".sx-leaving"), button = sure && target.closest("button");
  if (!button) return;
  sure.close(button.matches("[data-stay]") ? "" : "go");
  if (button.matches("[data-discard]")) { typed.clear(); for (const form of unsaved()) form.reset(); }
  if (next) next.saved = button.matches("[data-save]");
  if (!button.matches("[data-stay]")) goOn();
});
element.addEventListener("close", ({ target }) => { // the escape key stays too
  if (!target.matches?.(".sx-leaving") || target.returnValue === "go") return;
  next?.stay();
  next = null;
}, true);

// It captures, so it runs before the listener of all forms of the page.
element.addEventListener("submit", (event) => {
  restoring = false;
  chose = !!event.submitter?.matches(".sx-lesion");
  const form = event.target, consent = event.submitter?.value === "agree";
  // A consent is saved at once: what is written about the same case stays in its form.
  const others = unsaved().filter((one) => one !== form && !(consent && one.elements.case.value === form.elements.case.value));
  if (next || !others.length) {
    if (form.matches("[data-written]")) typed.delete(nameOf(form));
    return;
  }
  event.preventDefault();
  event.stopImmediatePropagation();
  form.closest("dialog")?.close();
  const sent = Object.fromEntries(new FormData(form, event.submitter));
  const counts = form.dataset.written === "record" && unsaved().includes(form); // among what is saved first
  ask((saved) => {
    if (saved && counts) return; // no entry twice
    const now = sent.version && [...element.querySelectorAll("form[data-written]")].find((one) => one.elements.case.value === sent.case);
    request(now ? { ...sent, version: now.elements.version.value } : sent);
  });
}, true);

element.addEventListener("input", ({ target }) => {
  const writer = target.name === "clinician" && target.form?.elements.note_writer;
  if (writer && writer.closest("label").hidden) writer.value = target.value; // one name for both
});
// Another diagnosis may rest on something else: what it rests on is asked again.
element.addEventListener("change", ({ target }) => {
  const form = target.closest?.("form.sx-confirm");
  if (!form) return;
  const { confirmed_by: basis, basis_again: again } = form.elements;
  if (target === basis) again.value = "yes";
  const names = ["label", "other", "icd10"].includes(target.name);
  if (names && isChanged(target) && !isChanged(form.elements.clinician)) form.elements.clinician.value = signing(); // of another diagnosis
  if (!names || again.value || !basis.value || !isChanged(target)) return;
  basis.value = "";
  form.querySelector(".sx-basis-again").textContent = form.querySelector(".sx-basis-again").dataset.says;
});
// Two cases that already stand side by side need no button to show them so.
function offerCompare(form) {
  const button = form.querySelector("[data-stood]"); // scans have none
  if (button) button.hidden = !!button.dataset.stood && ![...form.elements].some((field) => field.options && isChanged(field));
}
element.addEventListener("change", ({ target }) => { if (target.form?.matches(".sx-compare")) offerCompare(target.form); });
let leaving = false;
document.addEventListener("skindx-leaving", ({ detail }) => { leaving = true; detail.unsaved = unsaved().length > 0; });
// Logging out asks too, where the question can be seen.
document.addEventListener("skindx-logging-out", (event) => {
  if (!unsaved().length) return;
  event.preventDefault();
  if (!element.offsetParent) document.querySelector("button[role=tab][data-tab-id=book]")?.click();
  setTimeout(() => ask(event.detail), 100);
});
window.addEventListener("beforeunload", (event) => { if (!leaving && unsaved().length) event.preventDefault(); });

// A report holds what is saved, so what is written and not saved is asked about before it is made.
element.addEventListener("click", (event) => {
  const link = event.target.closest(".sx-files a[download]");
  if (!link || !unsaved().length) return;
  event.preventDefault();
  const { href } = link;
  ask(() => Object.assign(document.createElement("a"), { href, download: "" }).click());
});

// The tab is opened, or Back leads here: what was being written stays.
function open() {
  const [, first = "", last = ""] = /^#book=([0-9a-f]*),?([0-9a-f]*)/.exec(location.hash) ?? [];
  if (unsaved().length && at("[data-place]").dataset.place === location.hash) return;
  const go = () => { restoring = true; request({ action: "open", first, last }); };
  if (unsaved().length) ask(go, () => history.pushState({ ...history.state }, "", at("[data-place]").dataset.place));
  else go();
}
document.addEventListener("skindx-book", open);
document.addEventListener("skindx-book-done", () => {
  if (!saving) return;
  saving = false;
  if (at("form[data-refused], .sx-unsaved, .sx-lost")) next = null; // its message says why
  else goOn();
});

// Whose name was given last signs what is new; before any the login, where it names a person.
const signing = () => clinician || (/^\p{L}+[._-]\p{L}+$/u.exec(at("[data-place]")?.dataset.login.split("@")[0] ?? "") ? at("[data-place]").dataset.login : "");

// The confirmed diagnosis of another case of the lesion fills the form, and a person saves it.
element.addEventListener("click", ({ target }) => {
  const button = target.closest("[data-same]");
  if (!button) return;
  const form = button.closest(".sx-seen").querySelector("form[data-written]");
  for (const [name, value] of Object.entries(JSON.parse(button.dataset.same))) form.elements[name].value = value;
  form.elements.basis_again.value = "yes";
  if (form.elements.other.value) form.elements.other.closest("details").open = true;
  form.elements.confirmed_by.dispatchEvent(new Event("change", { bubbles: true }));
  const said = form.querySelector(".sx-basis-again");
  said.textContent = said.dataset.filled;
  form.querySelector("[value=confirm]").focus();
});

function find() {
  const patients = [...element.querySelectorAll("[data-of]:has(> h3)")];
  if (!patients.some((one) => one.dataset.of === only)) only = "";
  for (const lesion of element.querySelectorAll("[data-find]")) {
    lesion.hidden = !lesion.dataset.find.includes(search) || !!(only && lesion.closest("[data-of]").dataset.of !== only)
      || !(lesion.dataset.states ?? "").includes(state);
  }
  for (const one of patients) one.querySelector("[data-patient]").setAttribute("aria-pressed", String(one.dataset.of === only));
  for (const button of element.querySelectorAll("[data-state]")) button.setAttribute("aria-pressed", String(button.dataset.state === state));
  if (at("[data-everyone]")) at("[data-everyone]").hidden = !only;
  for (const patient of element.querySelectorAll(".sx-patients > li")) patient.hidden = !patient.querySelector("[data-find]:not([hidden])");
  const left = element.querySelectorAll("[data-find]:not([hidden])").length;
  at(".sx-book")?.classList.toggle("sx-all-shown", all || !!search || !!only || !!state);
  if (at(".sx-search-found")) at(".sx-search-found").textContent = search || only || state ? say("js_found", { n: left }) : "";
}
element.addEventListener("click", ({ target }) => {
  if (target.closest("[data-all]")) { all = true; find(); }
  const patient = target.closest("[data-patient]");
  if (patient) { const of = patient.closest("[data-of]").dataset.of; only = only === of ? "" : of; find(); }
  const chosen = target.closest("[data-state]")?.dataset.state;
  if (chosen) { state = state === chosen ? "" : chosen; find(); }
  if (!target.closest("[data-everyone]")) return;
  const was = at("[data-patient][aria-pressed=true]");
  only = "";
  find();
  was?.focus();
});
element.addEventListener("input", ({ target }) => { if (target.matches(".sx-search")) { search = target.value.trim().toLowerCase(); find(); } });

watch("value", () => {
  const place = at("[data-place]")?.dataset.place, replaces = restoring;
  restoring = false;
  if (!at(`[data-state="${state}"]`)) state = ""; // the last of them was seen to
  if (at(".sx-search") && search) at(".sx-search").value = search;
  find();
  for (const field of element.querySelectorAll("form[data-written] [data-session]")) field.defaultValue = signing();
  for (const field of element.querySelectorAll("[name=note_writer][data-session]")) {
    const { clinician: signs } = field.form.elements; // asked for where another person may write
    field.closest("label").hidden = !!signs.defaultValue && signs.defaultValue === signing();
  }
  at("form[data-refused] :is([name=same_person]:not(:checked), [name=same_lesion]:not(:checked), [aria-invalid])")?.focus();
  for (const form of element.querySelectorAll("form[data-written]")) {
    for (const [name, value, checked] of typed.get(nameOf(form)) ?? []) {
      const folded = form.elements[name]?.closest?.("details");
      Object.assign(form.elements[name] ?? {}, { value, checked });
      if (folded) folded.open = true;
    }
  }
  if (next && !saving) ask(next.go, next.stay); // the reply wrote the open question anew too
  for (const form of element.querySelectorAll("form.sx-compare")) offerCompare(form);
  const said = at(".sx-over-time > :is(.sx-kept, .sx-refusal):not(:empty)");
  said?.scrollIntoView({ block: "nearest" });
  said?.focus({ preventScroll: true });
  at(".sx-confirm > .sx-kept:not(:empty)")?.scrollIntoView({ block: "nearest" }); // above its button
  // On a phone the chosen lesion stands below the list.
  if (chose && matchMedia("(max-width: 740px)").matches) at(".sx-over-time").scrollIntoView();
  chose = false;
  if (!place || place === location.hash || !location.hash.startsWith("#book")) return;
  history[replaces ? "replaceState" : "pushState"]({ ...history.state }, "", place);
});
