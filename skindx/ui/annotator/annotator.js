// A key presses its button, wherever the reviewer is; not while a class is typed or chosen.
const KEYS = {
  s: ['sx-save', 'sx-same', 'sx-skin'], d: ['sx-different'], n: ['sx-no_skin'], k: ['sx-skip'], b: ['sx-back'], u: ['sx-undo'],
};
document.addEventListener('keydown', (event) => {
  const button = (KEYS[event.key.toLowerCase()] ?? [])
    .map((id) => document.getElementById(id)).find((element) => element);
  const typing = event.target.closest('input, textarea, select, [role="dialog"], [contenteditable]');
  if (!button || typing || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  event.preventDefault();
  button.click();
});
