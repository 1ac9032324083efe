//! rollscope-demo
