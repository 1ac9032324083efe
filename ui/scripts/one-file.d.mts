import type { Plugin } from 'vite';
export const MARKER: string;
export function oneFile(): Plugin;
