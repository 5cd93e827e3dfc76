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
  form.querySelector(".sx-known-names").textContent = typed ? asked + say(key, values) : "";
}

document.addEventListener("change", ({ target }) => { if (target.form?.dataset.names && target.name === "patient") offerPlaces(target.form); });
document.addEventListener("input", ({ target }) => {
  if (!target.form?.dataset.names || target.name !== "patient") return;
  if (alike(Object.keys(JSON.parse(target.form.dataset.names)), target.value)) offerPlaces(target.form);
});
// A side that the name of a lesion gives, and the form does not, is proposed.
function proposeSide(form) {
  const ticks = [...form.querySelectorAll("[data-side]")], name = form.elements.lesion?.value ?? "";
  const named = ticks.filter((one) => new RegExp(one.dataset.side, "iu").test(name));
  for (const one of ticks) {
    const hides = named.length !== 1 || named[0] !== one;
    if (one.hidden !== hides) one.querySelector("input").checked = !hides;
    one.hidden = hides;
  }
}
for (const kind of ["input", "change"]) document.addEventListener(kind, ({ target }) => { if (target.name === "lesion" && target.form?.dataset.names) proposeSide(target.form); });
// Other names need another look, and the pseudonym of the PDF is offered for keeping.
let carried = "";
document.addEventListener("input", ({ target }) => {
  if (["patient", "lesion", "view"].includes(target.name) && target.form?.dataset.names) {
    for (const tick of target.form.querySelectorAll("[name=no_person], [name=same_lesion], [name=same_person]")) tick.checked = false;
  }
  const patient = target.matches("[data-pseudonym]") && target.closest("section").querySelector(".sx-keep-form [name=patient]");
  if (!patient || (patient.value && patient.value !== carried)) return;
  patient.value = carried = target.value;
  offerPlaces(patient.form);
});
