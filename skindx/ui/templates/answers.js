"use strict";
(() => {
  const at = (name) => document.getElementById(name);
  const rows = [...document.querySelectorAll(".answers tbody tr")];
  const words = at("filter"), which = at("which");
  at("filters").hidden = false;
  const filter = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const fits = (!which.value || row.dataset.kinds.split(" ").includes(which.value))
        && wanted.every((word) => row.dataset.words.includes(word));
      row.hidden = !fits;
      shown += fits;
    }
    at("count").textContent = `${shown} of ${rows.length} shown`;
  };
  words.addEventListener("input", filter);
  which.addEventListener("change", filter);
  at("filters").addEventListener("submit", (event) => event.preventDefault());
  filter();
})();
