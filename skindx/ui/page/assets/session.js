// Every request of the page passes here: a session that has ended, or an answer that was lost on its
// way, is reported once, to all parts of the page, by the event skindx-lost; its detail is a sentence.
const OUT = "You are no longer logged in, so nothing was sent or saved. Log in again in the new tab, then come back and try again: what you typed stays here.";
const banner = document.createElement("div");
banner.className = "sx-out";
banner.setAttribute("role", "alert");
element.append(banner);

function ended() {
  if (banner.firstChild) return;
  const again = Object.assign(document.createElement("a"), { href: "login", target: "_blank", rel: "noopener", className: "sx-button sx-primary", textContent: "Log in again" });
  banner.append(Object.assign(document.createElement("p"), { textContent: OUT }), again);
}

// Gradio does not tell the page when its question, or the stream of answers, fails on the way.
const plain = window.fetch;
const asks = [[/\/gradio_api\/queue\/join\b/, "application/json"], [/\/gradio_api\/queue\/data\b/, "text/event-stream"]];
const lost = (detail = "") => document.dispatchEvent(new CustomEvent("skindx-lost", { detail }));
// A stream ends when all that it waits for has come; what is asked then is told by the next one.
let streams = 0, open = 0, joins = 0;
async function watched(body) {
  const number = ++streams;
  open += 1;
  await body?.pipeTo(new WritableStream()).catch(() => {});
  open -= 1;
  const asking = joins;
  setTimeout(() => { if (!open && streams === number && joins === asking) lost(); }, 2000);
}
window.fetch = async (...sent) => {
  const url = String(sent[0]?.url ?? sent[0]), place = asks.findIndex(([route]) => route.test(url));
  let answer;
  if (place === 0) joins += 1;
  try { answer = await plain(...sent); } catch (error) {
    if (place < 0 || error?.name === "AbortError") throw error;
    lost();
    // To a network error Gradio reloads the page, and the photos would be gone.
    return new Response("{}", { status: 503, headers: { "content-type": "application/json" } });
  }
  if (answer.status === 401) ended(); else if (answer.ok) banner.replaceChildren();
  if (place < 0) return answer;
  if (!answer.ok || !answer.headers.get("content-type")?.startsWith(asks[place][1])) lost(answer.status === 401 ? OUT : "");
  else if (place) watched(answer.clone().body);
  return answer;
};

// Logging out needs one click: the browser does not ask about the photos and the answer. Other tabs
// of this browser leave too, and a page that Back would show from memory is asked for again.
const tabs = new BroadcastChannel("skindx"), out = element.querySelector(".sx-login");
function leave() {
  document.dispatchEvent(new Event("skindx-leaving"));
  document.body.replaceChildren();
  location.replace("login");
}
tabs.onmessage = () => { if (out) leave(); };
out?.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const answer = await plain(out.action, { method: "POST", redirect: "manual" });
    if (answer.type !== "opaqueredirect" && answer.status !== 401) throw new Error(answer.status);
  } catch {
    banner.replaceChildren(Object.assign(document.createElement("p"), { textContent: "You are still logged in: the server did not answer. Check the connection and log out again, or close this browser." }));
    return;
  }
  tabs.postMessage("out");
  leave();
});
window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
