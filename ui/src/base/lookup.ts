/** What a table has under a key that comes from data. `table[key]` would also find what every object inherits, such as `constructor`. */
export const lookup = <T>(table: Readonly<Record<string, T>>, key: string): T | undefined => (Object.hasOwn(table, key) ? table[key] : undefined);
