// What a form of the case book lacks is said beside its field, which takes the focus.
let lacking = false;
document.addEventListener("invalid", (event) => {
  const field = event.target, question = field.type === "radio" && field.closest("fieldset"), label = question || field.closest("label");
  if (!label || !(field.closest(".sx-book") || field.form?.matches(".sx-keep-form"))) return;
  event.preventDefault();
  const first = field.type === "radio" ? field.form.querySelector(`[name="${field.name}"]`) : field;
  if (field !== first) return; // of one question it is said once
  const kind = !field.validity.valueMissing ? "" : { checkbox: "js_lacks_tick", radio: "js_lacks_choice" }[field.type] ?? "js_lacks";
  const said = label.querySelector(".sx-lacks") ?? Object.assign(document.createElement("small"), { className: "sx-lacks sx-refusal" });
  if (question) question.querySelector("legend").after(said); else label.append(said); // what is asked stands above the answers
  said.id = `sx-lacks-${field.form?.elements.case?.value ?? ""}-${field.name}`;
  const name = question ? question.querySelector("legend").textContent.trim() : [...label.querySelector("span").childNodes].find((one) => one.nodeType === 3)?.data.replace(/\(.*/, "").trim() ?? "";
  said.textContent = kind ? say(kind, { field: question ? name : name.charAt(0).toLowerCase() + name.slice(1) }) : field.validationMessage;
  (question || field).setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", said.id);
  for (let folded = field.closest("details"); folded; folded = folded.parentElement.closest("details")) folded.open = true;
  if (!lacking) { field.focus(); setTimeout(() => { lacking = false; }); }
  lacking = true;
}, true);
for (const kind of ["input", "change"]) document.addEventListener(kind, ({ target: field }) => {
  const place = (field.type === "radio" && field.closest("fieldset")) || field.closest?.("label"), said = place?.querySelector(".sx-lacks");
  if (!said) return;
  said.remove();
  for (const one of [place, ...place.querySelectorAll("*")]) for (const state of ["aria-invalid", "aria-describedby"]) one.removeAttribute(state);
});
