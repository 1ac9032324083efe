export interface MockStep {
  spans: { n: number };
  rows: unknown[];
  wall: number;
}
export function makeStep(options: { seed: number; samples: number; group?: number; perSample?: number; cut?: number; hostile?: boolean }): MockStep;
export function timelineStream(step: MockStep, baseNs: bigint): Uint8Array;
export function samplesStream(step: MockStep, baseNs: bigint, run: string, number: number): Uint8Array;
export function sqlStream(columns: Record<string, unknown>): Uint8Array;
export function attrsStream(step: MockStep, from: number, to: number): Uint8Array;
export function staticPage(template: string, steps: MockStep[], pack: (bytes: Uint8Array) => string): string;
