// The names that a login has used: its patients are offered, and of the chosen one its lesions. A name
// in another spelling (case, spaces, kind of dash) is the same name, as on the server.
const plainName = (name) => name.normalize("NFKC").trim().replace(/\s+/g, " ").replace(/\s*[-\u2010-\u2015\u2212\u2043\ufe58\ufe63\uff0d]+\s*/g, "-").toLowerCase();
const alike = (names, name) => names.find((one) => plainName(one) === plainName(name));

function offerPlaces(form) {
  const names = JSON.parse(form.dataset.names), patient = alike(Object.keys(names), form.elements.patient.value);
  const places = names[patient] ?? [], typed = form.elements.patient.value.trim();
  form.querySelector("#sx-places")?.replaceChildren(...places.map((place) => new Option("", place)));
  const there = places.length ? ` with ${places.join("; ")}` : "";
  form.querySelector(".sx-known-names").textContent = !typed ? "" : patient ? `${patient} is in the case book${there}.` : `${typed} is new in this case book.`;
}

document.addEventListener("change", ({ target }) => { if (target.form?.dataset.names && target.name === "patient") offerPlaces(target.form); });
document.addEventListener("input", ({ target }) => {
  if (!target.form?.dataset.names || target.name !== "patient") return;
  if (alike(Object.keys(JSON.parse(target.form.dataset.names)), target.value)) offerPlaces(target.form);
});
