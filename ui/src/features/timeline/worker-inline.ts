import W from './worker?worker&inline';
export default (): Worker => new W();
