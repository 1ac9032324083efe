// Every view, in the order of the navigation. A new view is one component and one line here. `path` is the part of the
// address after `#/`; its `:parts` arrive in `app.route.params` (and `:run` in `app.route.run`), and
// `app.href(key, run, params)` puts them back. A component is loaded when it is first shown. It is mounted again when the
// view, the run or another part of its path changes; what follows the `?` changes under it.
import type { ViewSpec } from '../domain/views';
import { askForReport } from '../features/answers/api';

export const VIEWS: readonly ViewSpec[] = [
  { key: 'runs', title: 'Runs', path: '', nav: 'always', shortcut: 'r', load: () => import('../features/runs/Runs.svelte') },
  { key: 'runs', title: 'Runs', path: 'runs', nav: 'never', load: () => import('../features/runs/Runs.svelte') },
  { key: 'compare', title: 'Compare', path: 'compare', nav: 'never', load: () => import('../features/runs/Compare.svelte') },
  { key: 'run', title: 'Run', path: 'run/:run', nav: 'run', shortcut: 'u', load: () => import('../features/runs/Run.svelte') },
  {
    key: 'step',
    title: 'Step',
    path: 'run/:run/step/:step',
    nav: 'never',
    load: () => import('../features/step/Step.svelte'),
    ahead: __STATIC__
      ? undefined
      : (run, { step }) => {
          askForReport(run, Number(step));
          void import('../features/answers/StepAnswers.svelte');
        },
  },
  {
    key: 'timeline',
    title: 'Timeline',
    path: 'run/:run/timeline',
    nav: 'run',
    shortcut: 't',
    load: () => import('../features/timeline/Timeline.svelte'),
  },
  // A page that opens from disk has neither answers, metrics nor series.
  ...(__STATIC__
    ? []
    : ([
        {
          key: 'now',
          title: 'Now',
          path: 'run/:run/now',
          nav: 'run',
          needs: 'live',
          shortcut: 'n',
          load: () => import('../features/answers/Now.svelte'),
        },
        {
          key: 'findings',
          title: 'Findings',
          path: 'run/:run/findings',
          nav: 'run',
          needs: 'live',
          shortcut: 'f',
          load: () => import('../features/answers/RunFindings.svelte'),
        },
        {
          key: 'diff',
          title: 'What changed',
          path: 'run/:run/diff',
          nav: 'never',
          needs: 'live',
          load: () => import('../features/answers/Difference.svelte'),
        },
        {
          key: 'metrics',
          title: 'Metrics',
          path: 'run/:run/metrics',
          nav: 'run',
          needs: 'live',
          shortcut: 'm',
          load: () => import('../features/metrics/Metrics.svelte'),
        },
        {
          key: 'serving',
          title: 'Serving',
          path: 'run/:run/serving',
          nav: 'run',
          needs: 'live',
          shortcut: 'e',
          load: () => import('../features/serving/Serving.svelte'),
        },
        { key: 'engines', title: 'Engines', path: 'serving', nav: 'always', needs: 'live', load: () => import('../features/serving/Serving.svelte') },
        {
          key: 'alarms',
          title: 'Alarms',
          path: 'alarms',
          nav: 'always',
          needs: 'live',
          shortcut: 'a',
          load: () => import('../features/alarms/Alarms.svelte'),
        },
        {
          key: 'nodes',
          title: 'Nodes',
          path: 'nodes',
          nav: 'always',
          needs: 'lake',
          shortcut: 'o',
          load: () => import('../features/nodes/Nodes.svelte'),
        },
        {
          key: 'traces',
          title: 'Traces',
          path: 'traces',
          nav: 'always',
          needs: 'live',
          shortcut: 'x',
          load: () => import('../features/traces/Traces.svelte'),
        },
        {
          key: 'mismatch',
          title: 'Mismatch',
          path: 'run/:run/mismatch',
          nav: 'never',
          needs: 'live',
          load: () => import('../features/mismatch/Mismatch.svelte'),
        },
        {
          key: 'tokens',
          title: 'Tokens',
          path: 'run/:run/tokens/:step/:sample',
          nav: 'never',
          needs: 'live',
          load: () => import('../features/tokens/Tokens.svelte'),
        },
        { key: 'trace', title: 'Trace', path: 'trace/:trace', nav: 'never', ofRun: true, load: () => import('../features/traces/Trace.svelte') },
      ] satisfies ViewSpec[])),
  {
    key: 'conversations',
    title: 'Conversations',
    path: 'run/:run/conversations',
    nav: 'run',
    shortcut: 'c',
    load: () => import('../features/conversations/List.svelte'),
  },
  {
    key: 'conversation',
    title: 'Conversation',
    path: 'conversation/:id',
    nav: 'never',
    ofRun: true,
    load: () => import('../features/conversations/Conversation.svelte'),
  },
  { key: 'group', title: 'Group', path: 'run/:run/group/:step/:group', nav: 'never', load: () => import('../features/conversations/Group.svelte') },
  {
    key: 'attempts',
    title: 'Attempts',
    path: 'run/:run/attempts/:step/:sample',
    nav: 'never',
    load: () => import('../features/conversations/Group.svelte'),
  },
  {
    key: 'all-conversations',
    title: 'Conversations of all runs',
    path: 'conversations',
    nav: 'never',
    load: () => import('../features/conversations/List.svelte'),
  },
  { key: 'sql', title: 'SQL', path: 'sql', nav: 'always', needs: 'sql', shortcut: 'q', load: () => import('../features/sql/Sql.svelte') },
  // Last: any address that is none of the above.
  { key: 'nowhere', title: 'No such page', path: '*', nav: 'never', load: () => import('./Nowhere.svelte') },
];
