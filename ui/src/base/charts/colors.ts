// Colours that can be told apart on both backgrounds; a series keeps its colour by its place.
const DARK = ['#58a6e8', '#e0973a', '#3fb68f', '#d776b8', '#a58be0', '#d6c04a', '#f0716b', '#5ac4c9', '#9aa7b8', '#b48a66'];
const LIGHT = ['#1f74bd', '#b86a10', '#16805e', '#a8428a', '#6a4fc0', '#8a7400', '#c33a34', '#0e8288', '#5a6573', '#855a34'];

export const seriesColor = (i: number, dark: boolean): string => (dark ? DARK : LIGHT)[i % DARK.length];
