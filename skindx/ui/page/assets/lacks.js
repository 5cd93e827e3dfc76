// What a form of the case book lacks is said beside its field, which takes the focus.
let lacking = false;
document.addEventListener("invalid", (event) => {
  const field = event.target, label = field.closest("label");
  if (!label || !field.closest(".sx-book, .sx-keep-form")) return;
  event.preventDefault();
  const first = field.type === "radio" ? field.form.querySelector(`[name="${field.name}"]`) : field;
  if (field !== first) return; // of one question it is said once
  const kind = !field.validity.valueMissing ? "" : { checkbox: "js_lacks_tick", radio: "js_lacks_choice" }[field.type] ?? "js_lacks";
  const said = label.querySelector(".sx-lacks") ?? label.appendChild(Object.assign(document.createElement("small"), { className: "sx-lacks sx-refusal" }));
  said.id = `sx-lacks-${field.form?.elements.case?.value ?? ""}-${field.name}`;
  const name = [...label.querySelector("span").childNodes].find((one) => one.nodeType === 3)?.data.replace(/\(.*/, "").trim() ?? "";
  said.textContent = kind ? say(kind, { field: name.charAt(0).toLowerCase() + name.slice(1) }) : field.validationMessage;
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", said.id);
  for (let folded = field.closest("details"); folded; folded = folded.parentElement.closest("details")) folded.open = true;
  if (!lacking) { field.focus(); setTimeout(() => { lacking = false; }); }
  lacking = true;
}, true);
for (const kind of ["input", "change"]) document.addEventListener(kind, ({ target }) => {
  for (const field of target.type === "radio" && target.form ? target.form.querySelectorAll(`[name="${target.name}"]`) : [target]) {
    const said = field.closest?.("label")?.querySelector(".sx-lacks");
    if (!said) continue;
    said.remove();
    for (const one of ["aria-invalid", "aria-describedby"]) field.removeAttribute(one);
  }
});
