import W from './worker?worker';
export default (): Worker => new W();
