// A key presses its button, wherever the reviewer is; not while a class is typed or chosen.
const KEYS = { s: 'sx-save', k: 'sx-skip', b: 'sx-back', u: 'sx-undo' };
document.addEventListener('keydown', (event) => {
  const id = KEYS[event.key.toLowerCase()];
  const typing = event.target.closest('input, textarea, select, [role="dialog"], [contenteditable]');
  if (!id || typing || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  event.preventDefault();
  document.getElementById(id)?.click();
});
