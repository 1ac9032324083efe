export function apiTypes(): Promise<string>;
