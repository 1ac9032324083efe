export interface MockStep {
  spans: { n: number; trace: Uint32Array; span: Uint32Array; codes: { name: Int32Array } };
  rows: unknown[];
  wall: number;
}
export function makeStep(options: { seed: number; samples: number; group?: number; perSample?: number; cut?: number; hostile?: boolean }): MockStep;
export function timelineStream(step: MockStep, baseNs: bigint, how?: { live?: boolean; thin?: boolean; parts?: number[] }): Uint8Array<ArrayBuffer>;
export function samplesStream(step: MockStep, baseNs: bigint, run: string, number: number): Uint8Array;
export function sqlStream(columns: Record<string, unknown>): Uint8Array;
/** A block as the one-file page has it: gzip, in the text of src/data/ascii.ts. */
export function block(bytes: Uint8Array | string): string;
export function staticPage(template: string, steps: MockStep[]): string;
