// What this browser remembers between visits.
export function stored(key: string): string | null {
  try {
    return localStorage.getItem(key);
  } catch {
    return null; // Some browsers refuse storage to file: pages.
  }
}
export function store(key: string, value: string): void {
  try {
    localStorage.setItem(key, value);
  } catch {
    // Then it lasts as long as the page.
  }
}
