export interface Mock {
  url: string;
  advance(run: string, ms: number): void;
  delay(ms: number): void;
  stop(): Promise<void>;
}
export function start(options?: { port?: number; empty?: boolean; big?: boolean; page?: string }): Promise<Mock>;
