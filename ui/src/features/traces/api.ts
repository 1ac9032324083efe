import { api, bytesOf, getJson, request, withParams, type Params } from '../../data/http';
import { decode, type Held, type Trace } from './model';

/** A trace as the list shows it. */
export interface FoundTrace {
  trace_id: string;
  start_ns: string;
  duration_ns: number;
  spans: number;
  errors: number;
  open: number;
  root?: string;
  service?: string;
  services?: number;
  run_id?: string;
  step?: number | null;
  sample_id?: string | null;
  request_id?: string | null;
}
export interface FoundTraces {
  traces: FoundTrace[];
  total: number;
}

export const findTraces = (params: Params, signal?: AbortSignal): Promise<FoundTraces> => getJson(withParams(api`/traces`, params), signal);

export async function loadTrace(trace: string, signal?: AbortSignal): Promise<Trace> {
  return decode(await bytesOf(await request(api`/traces/${trace}/view`, { signal })));
}

export async function criticalPath(trace: string, signal?: AbortSignal): Promise<Held> {
  return { ...(await getJson<Omit<Held, 'trace'>>(api`/traces/${trace}/path`, signal)), trace };
}
