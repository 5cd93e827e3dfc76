// Forms that the server wrote: what they hold goes back as one event, with the button pressed.
let asking = false, sent = [];
let clinician = document.querySelector("[data-clinician]")?.value ?? ""; // who signs, as typed in this tab, which alone remembers it
document.addEventListener("skindx-clinician", ({ detail }) => { clinician = detail; });
let later = null; // whose lesion the next photo shows, until the form is cleared again
document.addEventListener("skindx-cleared", () => { later = null; });
element.addEventListener("submit", (event) => {
  event.preventDefault();
  asking = true;
  element.querySelector(".sx-lost")?.remove();
  sent = [...new FormData(event.target, event.submitter)];
  event.target.closest("dialog")?.close(); // a form that is a dialog's whole content, as of a deletion
  trigger("act", Object.fromEntries(sent));
});
// Gradio patches the page in place: a field would hold what was typed or ticked in the one that stood
// there before, perhaps of another patient. So each takes what the server wrote, but a form that was
// refused, which holds what was typed.
watch("value", () => {
  asking = false;
  // A dialog that the patch took its `open` from would still hold the whole page.
  for (const left of element.querySelectorAll("dialog:modal:not([open])")) { left.open = true; left.close(); }
  for (const form of element.querySelectorAll("form")) form.reset();
  for (const field of element.querySelectorAll("[data-pseudonym]")) field.value = field.defaultValue;
  for (const field of element.querySelectorAll("[data-clinician]")) field.value = field.defaultValue || clinician;
  for (const box of element.querySelectorAll("[data-no-person]")) { box.checked = false; box.closest("label").hidden = true; }
  const keeps = element.querySelector(".sx-keep-form");
  for (const [name, value] of keeps && later ? Object.entries(later) : []) {
    const field = keeps.elements[name];
    if (!field.defaultValue) field.value = value;
    field.dispatchEvent(new Event("change", { bubbles: true }));
  }
  const refused = element.querySelector("form[data-refused]");
  for (const [name, value] of refused ? sent : []) {
    const field = refused.elements[name];
    if (!field?.closest) continue; // one of several buttons
    const folded = field.closest("details");
    field.value = value;
    if (folded && value) folded.open = true;
  }
  element.querySelector(".sx-keep-form [data-asks]:not(:checked)")?.focus(); // the question's tick
  const asks = element.querySelector("dialog[data-now]");
  if (asks) show(asks);
});
function show(dialog) { dialog.showModal(); dialog.querySelector("[data-keep]").focus(); }
element.addEventListener("input", ({ target }) => { // what was wrong is being corrected
  if (target.matches("[data-clinician], [name=clinician], [data-session]")) document.dispatchEvent(new CustomEvent("skindx-clinician", { detail: target.value }));
  for (const place of element.querySelectorAll(".sx-refusal:not(.sx-report-problem, .sx-lacks)")) place.textContent = "";
});
element.addEventListener("cancel", (event) => { // the escape key keeps what stands
  const keeps = event.target.querySelector?.("[data-stands]");
  if (!keeps) return;
  event.preventDefault();
  keeps.click();
}, true);
document.addEventListener("skindx-lost", ({ detail }) => {
  if (!asking) return;
  asking = false;
  const said = Object.assign(document.createElement("p"), { className: "sx-refusal sx-lost", textContent: detail || sayAll("js_lost_saving", "js_lost_saving_do") });
  said.setAttribute("role", "alert");
  element.prepend(said);
});
element.addEventListener("click", (event) => {
  // What cannot be undone asks back first; the focus is on the answer that changes nothing.
  const asks = event.target.closest("[data-ask]");
  if (asks) show(asks.nextElementSibling);
  event.target.closest("[data-keep]")?.closest("dialog").close();
  const stands = event.target.closest("[data-stands]")?.form; // the diagnosis stays, and the note that was typed
  if (stands) {
    const note = stands.elements.note.value;
    stands.reset();
    stands.elements.note.value = note;
    stands.dispatchEvent(new Event("change", { bubbles: true }));
    stands.querySelector(".sx-refusal").textContent = "";
  }
  if (event.target.closest("[data-edit-note]")) {
    const { form } = event.target;
    event.target.closest("dialog").close();
    form.elements.note.focus();
  }
  const again = event.target.closest("[data-again], [data-later]");
  if (!again) return;
  const { patient, lesion } = again.dataset, of = patient ? { patient, lesion } : null;
  document.dispatchEvent(new CustomEvent("skindx-again", { detail: of }));
  later = of;
});
