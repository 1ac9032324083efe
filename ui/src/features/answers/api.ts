import { api, getJson, withParams } from '../../data/http';
import type { Difference, RunFindings, StepReport } from './types';

export const stepReport = (run: string, step: number, signal?: AbortSignal): Promise<StepReport> =>
  getJson(api`/runs/${run}/steps/${step}/report`, signal);
export const runFindings = (run: string, signal?: AbortSignal): Promise<RunFindings> => getJson(api`/runs/${run}/findings`, signal);
export const difference = (run: string, step: number, withStep: number, signal?: AbortSignal): Promise<Difference> =>
  getJson(withParams(api`/runs/${run}/diff`, { step, with: withStep }), signal);
