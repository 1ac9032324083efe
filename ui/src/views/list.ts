// Every view, in the order of the navigation. A new view is one component and one line here (and its name in route.ts).
import type { Component } from 'svelte';
import type { View } from '../lib/route';
import Run from './Run.svelte';
import Runs from './Runs.svelte';
import Sql from './Sql.svelte';
import Timeline from './Timeline.svelte';

export const VIEWS: { key: View; title: string; needsRun: boolean; component: Component }[] = [
  { key: 'runs', title: 'Runs', needsRun: false, component: Runs },
  { key: 'run', title: 'Run', needsRun: true, component: Run },
  { key: 'timeline', title: 'Timeline', needsRun: true, component: Timeline },
  { key: 'sql', title: 'SQL', needsRun: false, component: Sql },
];
