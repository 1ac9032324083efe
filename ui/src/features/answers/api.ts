import { api, askAhead, getJson, request, withParams } from '../../data/http';
import type { SpanDetail } from '../../data/types';
import type { Difference, Hang, RunFindings, StepReport } from './types';

const reportAddress = (run: string, step: number): string => api`/runs/${run}/steps/${step}/report`;
export const stepReport = (run: string, step: number, signal?: AbortSignal): Promise<StepReport> => getJson(reportAddress(run, step), signal);
export const askForReport = (run: string, step: number): void => askAhead(reportAddress(run, step));
export const runFindings = (run: string, signal?: AbortSignal): Promise<RunFindings> => getJson(api`/runs/${run}/findings`, signal);
export const difference = (run: string, step: number, withStep: number, signal?: AbortSignal): Promise<Difference> =>
  getJson(withParams(api`/runs/${run}/diff`, { step, with: withStep }), signal);
/** `at`: a moment instead of now. */
export const hang = (run: string, at: string | undefined, signal?: AbortSignal): Promise<Hang> =>
  getJson(at === undefined ? api`/runs/${run}/hang` : withParams(api`/runs/${run}/hang`, { at }), signal);
/** The processes of a run answer within some seconds, if they can. */
export const askForStacks = (run: string): Promise<Response> => request(api`/runs/${run}/stacks`, { method: 'POST' });
const STACKS = 'rollscope.stacks';
export const stacksOf = async (trace: string, span: string, signal?: AbortSignal): Promise<string> => {
  const found = await getJson<SpanDetail>(api`/spans/${trace}/${span}`, signal);
  return String(found.end_attrs?.[STACKS] ?? found.start_attrs?.[STACKS] ?? '');
};
