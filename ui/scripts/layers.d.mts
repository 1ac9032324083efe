export function problemsIn(src: string): string[];
