// The real binary for tests: started on free ports with a folder of its own, stopped at the end; and OTLP over HTTP as JSON.
import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

export const ROOT = resolve(import.meta.dirname, '../../..');
export const BINARY = process.env.ROLLSCOPE_BINARY ?? join(ROOT, 'target/debug/rollscope');

export interface Server {
  url: string;
  otlp: string;
  stop: () => Promise<void>;
}

/** `prepare` fills the folder before the server starts on it. */
export async function serve(command: 'serve' | 'demo', more: string[] = [], prepare?: (dir: string) => void): Promise<Server> {
  if (!existsSync(BINARY)) throw new Error(`there is no ${BINARY}: run make ${BINARY.includes('debug') ? 'run' : 'release'} first`);
  const dir = mkdtempSync(join(tmpdir(), 'rollscope-page-'));
  prepare?.(dir);
  const any = '127.0.0.1:0';
  const child: ChildProcess = spawn(BINARY, [command, '--data', dir, '--listen', any, '--otlp-grpc', any, '--otlp-http', any, ...more], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let text = '';
  const found = await new Promise<{ url: string; otlp: string }>((done, fail) => {
    child.on('exit', (code) => fail(new Error(`rollscope ${command} ended with ${code}: ${text}`)));
    child.stdout!.on('data', (part: Buffer) => {
      text += String(part);
      const url = /rollscope is at (http:\S+)/.exec(text);
      const otlp = /OTLP HTTP\s+(http:\S+)/.exec(text);
      if (url && otlp) done({ url: url[1], otlp: otlp[1] });
    });
  });
  return {
    ...found,
    stop: () =>
      new Promise((done) => {
        child.removeAllListeners('exit');
        child.on('exit', () => {
          rmSync(dir, { recursive: true, force: true });
          done();
        });
        child.kill('SIGTERM');
      }),
  };
}

export function run(...args: string[]): string {
  const { status, stdout, stderr } = spawnSync(BINARY, args, { encoding: 'utf8' });
  if (status !== 0) throw new Error(`rollscope ${args.join(' ')}: ${stderr}`);
  return stdout;
}

export interface Span {
  id: number;
  parent?: number;
  trace?: number;
  name: string;
  /** Milliseconds since the epoch; no end: open. */
  start: number;
  end?: number;
  attrs?: Record<string, string | number>;
  error?: string;
}

const id = (n: number, digits: number): string => n.toString(16).padStart(digits, '0');
const value = (v: string | number): object =>
  typeof v === 'string' ? { stringValue: v } : Number.isInteger(v) ? { intValue: String(v) } : { doubleValue: v };
const attributes = (a: Record<string, string | number>): object[] => Object.entries(a).map(([key, v]) => ({ key, value: value(v) }));

/** Sends spans of a run and waits until they are kept. */
export async function send(server: Server, runId: string, spans: Span[]): Promise<void> {
  const ns = (ms: number): string => String(BigInt(Math.round(ms * 1000)) * 1000n);
  const body = {
    resourceSpans: [
      {
        resource: { attributes: attributes({ 'service.name': 'tester', 'rl.run.id': runId }) },
        scopeSpans: [
          {
            spans: spans.map((s) => ({
              traceId: id(s.trace ?? 1, 32),
              spanId: id(s.id, 16),
              parentSpanId: s.parent ? id(s.parent, 16) : '',
              name: s.name,
              kind: 1,
              startTimeUnixNano: ns(s.start),
              endTimeUnixNano: s.end === undefined ? '0' : ns(s.end),
              attributes: attributes(s.attrs ?? {}),
              status: s.error === undefined ? {} : { code: 2, message: s.error },
            })),
          },
        ],
      },
    ],
  };
  const response = await fetch(`${server.otlp}/v1/traces`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  if (!response.ok) throw new Error(`OTLP: ${response.status} ${await response.text()}`);
}
