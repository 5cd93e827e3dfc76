// What the review page and the page to browse share. Data go into a page as text, never as HTML.
'use strict';

const $ = (id) => document.getElementById(id);

async function ask(path, body) {
  const options = body && { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) };
  let reply;
  try {
    reply = await fetch(path, options);
  } catch {
    throw Error('The server does not answer; is `skindx review` still running?');
  }
  const data = await reply.json().catch(() => ({ error: 'This page is of an earlier start; open the new address.' }));
  if (!reply.ok) throw Error(data.error);
  return data;
}

function facts(pairs) {
  $('facts').replaceChildren(...pairs.flatMap(([name, value]) => {
    const [term, text] = [document.createElement('dt'), document.createElement('dd')];
    term.textContent = name;
    text.textContent = value;
    return [term, text];
  }));
}
