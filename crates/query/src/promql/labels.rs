//! A set of labels, sorted by name.

use std::sync::Arc;

pub const NAME: &str = "__name__";

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels(Arc<Vec<(String, String)>>);

impl Labels {
    /// The last value of a repeated name counts. An empty value means no label.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut all: Vec<(String, String)> = pairs.into_iter().collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        let mut out: Vec<(String, String)> = Vec::with_capacity(all.len());
        for pair in all {
            match out.last_mut() {
                Some(last) if last.0 == pair.0 => *last = pair,
                _ => out.push(pair),
            }
        }
        out.retain(|(_, value)| !value.is_empty());
        Labels(Arc::new(out))
    }

    pub fn get(&self, name: &str) -> &str {
        match self.0.binary_search_by(|(n, _)| n.as_str().cmp(name)) {
            Ok(i) => &self.0[i].1,
            Err(_) => "",
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(n, v)| (n.as_str(), v.as_str()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn filter(&self, keep: impl Fn(&str) -> bool) -> Self {
        if self.0.iter().all(|(n, _)| keep(n)) {
            return self.clone();
        }
        Labels(Arc::new(self.0.iter().filter(|(n, _)| keep(n)).cloned().collect()))
    }

    pub fn without_name(&self) -> Self {
        self.filter(|n| n != NAME)
    }

    pub fn keep(&self, names: &[String]) -> Self {
        self.filter(|n| names.iter().any(|k| k == n))
    }

    pub fn drop(&self, names: &[String]) -> Self {
        self.filter(|n| !names.iter().any(|k| k == n))
    }

    /// With one label set; an empty value removes it.
    pub fn with(&self, name: &str, value: &str) -> Self {
        let mut pairs: Vec<(String, String)> = self.0.iter().filter(|(n, _)| n != name).cloned().collect();
        if !value.is_empty() {
            pairs.push((name.to_string(), value.to_string()));
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
        }
        Labels(Arc::new(pairs))
    }
}

impl std::fmt::Display for Labels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.get(NAME))?;
        f.write_str("{")?;
        for (i, (name, value)) in self.iter().filter(|(n, _)| *n != NAME).enumerate() {
            write!(f, "{}{name}={value:?}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str("}")
    }
}
