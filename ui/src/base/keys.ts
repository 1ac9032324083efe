/** A key press that is meant for the page and not for a field. */
export function forPage(e: KeyboardEvent): boolean {
  if (e.defaultPrevented || e.ctrlKey || e.metaKey || e.altKey) return false;
  const t = e.target as HTMLElement | null;
  return !t || !(t.closest('input, textarea, select, dialog') !== null || t.isContentEditable);
}
