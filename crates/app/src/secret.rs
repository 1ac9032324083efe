//! What must not be printed.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// A token or a password. Never printed, also not with the configuration.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn secrets_are_not_printed() {
        let secret: Secret = serde_json::from_str("\"open sesame\"").unwrap();
        assert_eq!(secret.expose(), "open sesame");
        assert_eq!((format!("{secret:?}"), serde_json::to_string(&secret).unwrap()), ("***".into(), "\"***\"".into()));
    }
}
