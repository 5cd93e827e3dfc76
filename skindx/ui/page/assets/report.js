// The report is made when it is asked for: the sealed answer of this page goes to the server, which
// keeps nothing of it, and a PDF comes back.
element.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-part]");
  if (!button || button.getAttribute("aria-disabled") === "true") return;
  const tell = (sentence) => { button.closest("section").querySelector(".sx-report-problem").textContent = sentence; };
  const words = button.textContent;
  const field = (name) => button.closest("section").querySelector(`[data-${name}]`);
  const noPerson = field("no-person"), doubted = noPerson.closest("label");
  const sent = [button.closest("section").querySelector("[data-report]").dataset.report, field("pseudonym").value, field("clinician").value, noPerson.checked ? "yes" : ""];
  tell("");
  button.setAttribute("aria-disabled", "true");
  button.textContent = `${say("js_report_making")} …`;
  try {
    const answer = await fetch(`report?part=${button.dataset.part}`, { method: "POST", body: sent.join("\n") });
    if (answer.ok) {
      const [, name] = /filename="([^"]+)"/.exec(answer.headers.get("content-disposition")) || [];
      const url = URL.createObjectURL(await answer.blob());
      Object.assign(document.createElement("a"), { href: url, download: name || "skindx.pdf" }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
    } else {
      let sentence = say("js_status", { status: String(answer.status) });
      try {
        const { error, doubt } = await answer.json();
        sentence = error || sentence;
        if (doubt) doubted.hidden = false;
      } catch { /* of something in between */ }
      tell(sentence);
    }
  } catch {
    tell(say("js_unreached"));
  }
  button.textContent = words;
  button.removeAttribute("aria-disabled");
});
element.addEventListener("input", (event) => { // another name needs another look
  if (!event.target.closest("[data-pseudonym]")) return;
  const noPerson = event.target.closest("section").querySelector("[data-no-person]");
  noPerson.checked = false;
  noPerson.closest("label").hidden = true;
});
