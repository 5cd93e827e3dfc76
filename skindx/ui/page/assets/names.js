// The names that a login has used: its patients are offered, and of the chosen one its lesions. A name
// in another spelling (case, spaces, kind of dash) is the same name, as on the server.
const plainName = (name) => name.normalize("NFKC").trim().replace(/\s+/g, " ").replace(/\s*[-\u2010-\u2015\u2212\u2043\ufe58\ufe63\uff0d]+\s*/g, "-").toLowerCase();
const alike = (names, name) => names.find((one) => plainName(one) === plainName(name));

// A known name that differs in signs between letters, or in one character. Another digit, or one more at
// the end, is the next of a series.
const lettersOf = (name) => plainName(name).replace(/[^\p{L}\p{N}]/gu, "");
function isNear(one, other) {
  const [short, long] = [lettersOf(one), lettersOf(other)].sort((a, b) => a.length - b.length);
  if (short === long) return true;
  let from = 0, to = 0;
  while (from < short.length && short[from] === long[from]) from += 1;
  while (to < short.length - from && short.at(-1 - to) === long.at(-1 - to)) to += 1;
  const [was, is] = [short.slice(from, short.length - to), long.slice(from, long.length - to)];
  const isNext = /^\d$/.test(is) && (was ? /^\d$/.test(was) : !to);
  return long.length > 2 && is.length <= 1 && !isNext;
}

function offerPlaces(form) {
  const names = JSON.parse(form.dataset.names), patient = alike(Object.keys(names), form.elements.patient.value);
  const places = names[patient] ?? [], typed = form.elements.patient.value.trim();
  form.querySelector("#sx-places")?.replaceChildren(...places.map((place) => new Option("", place)));
  const doubtful = !patient && (/^\P{N}*\p{L}{2}\P{N}*$/u.test(typed) || /@|\d{7}|\d[./-]\d+[./-]\d/.test(typed));
  const key = doubtful ? "js_name_person" : !patient ? "js_name_new" : places.length ? "js_name_known_with" : "js_name_known";
  const values = !patient ? { name: typed } : places.length ? { name: patient, lesions: places } : { name: patient };
  const near = !patient && typed && Object.keys(names).find((one) => isNear(one, typed));
  const asked = near ? `${say("js_name_near", { name: near })} ` : "";
  form.closest("section").querySelector(".sx-known-names").textContent = typed ? asked + say(key, values) : "";
}

document.addEventListener("change", ({ target }) => { if (target.form?.dataset.names && target.name === "patient") offerPlaces(target.form); });
document.addEventListener("input", ({ target }) => {
  if (!target.form?.dataset.names || target.name !== "patient") return;
  if (alike(Object.keys(JSON.parse(target.form.dataset.names)), target.value)) offerPlaces(target.form);
});
// Side and place that the name of a lesion gives, and the form does not, are filled in; what a person
// chose stays.
const filled = {};
function fillNamed(form) {
  const { parts, near, none, ...facts } = JSON.parse(form.dataset.called), name = form.elements.lesion.value, plain = name.replace(new RegExp(none, "giu"), " ");
  for (const [fact, words] of Object.entries(facts)) {
    const field = form.elements[fact], isPlace = fact === "site";
    if (!field) continue; // the answer knew it
    let found = Object.keys(words).filter((one) => new RegExp(words[one], "iu").test(isPlace ? plain : name));
    if (isPlace && new RegExp(near, "iu").test(plain)) found = [];
    if (isPlace) found = found.filter((one) => !found.some((part) => (parts[part] ?? "").split(" ").includes(one)));
    const named = found.length === 1 ? found[0] : "";
    if (field.value === (filled[fact] ?? "") || (field.value === "" && named !== filled[fact])) field.value = filled[fact] = named;
    sayNamed(field, named);
  }
}
function sayNamed(field, named = filled[field.name]) { field.closest("label").querySelector("[data-says]").hidden = !named || field.value !== named; }
for (const kind of ["input", "change"]) document.addEventListener(kind, ({ target }) => {
  if (!target.form?.dataset.called) return;
  if (target.name === "lesion") fillNamed(target.form);
  if (["site", "laterality"].includes(target.name)) sayNamed(target);
});
// A form that is written anew holds what the server filled in.
document.addEventListener("reset", ({ target }) => {
  for (const field of target.dataset.called ? target.querySelectorAll("select") : []) {
    filled[field.name] = field.closest("label").querySelector("[data-says]").hidden ? undefined : field.querySelector("[selected]")?.value;
  }
});
// Other names need another look.
document.addEventListener("input", ({ target }) => {
  if (!["patient", "lesion", "view"].includes(target.name) || !target.form?.dataset.names) return;
  for (const tick of target.form.querySelectorAll("[name=no_person], [name=same_lesion], [name=same_person]")) tick.checked = false;
});
// The patient stands beside the PDF too, where the enter key keeps no case that is folded away.
document.addEventListener("keydown", (event) => {
  const form = event.key === "Enter" && event.target.matches("[data-pseudonym]") && event.target.form;
  if (form && !form.closest("details").open) event.preventDefault();
});
