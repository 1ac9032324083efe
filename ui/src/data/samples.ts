// What the page reads of a sample. Texts such as metadata are many times larger and stay on the server.
import type { Column } from '../generated/tables';

export const SAMPLE_COLUMNS = [
  'sample_id',
  'split',
  'group_id',
  'status',
  'reward',
  'reward_json',
  'source',
  'start_ns',
  'end_ns',
  'response_tokens',
  'response_length',
  'turns',
  'tool_calls',
] as const satisfies readonly Column<'samples'>[];

export type SampleColumn = (typeof SAMPLE_COLUMNS)[number];
