import { mount } from 'svelte';
import { app } from './domain/app.svelte';
import App from './shell/App.svelte';
import './shell/app.css';
import { SLOTS } from './shell/slots';
import { VIEWS } from './shell/views';

app.open(VIEWS, SLOTS);
mount(App, { target: document.getElementById('app')! });
