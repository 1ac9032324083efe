//! rollscope-query
