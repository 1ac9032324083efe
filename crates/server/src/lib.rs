//! rollscope-server
