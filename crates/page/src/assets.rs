//! Which files is the page made of?

use std::hash::{DefaultHasher, Hash, Hasher};

/// A file of the page.
#[derive(Debug, PartialEq, Eq)]
pub struct Asset {
    /// Its path below `/ui/`.
    pub name: &'static str,
    /// Its Content-Type.
    pub kind: &'static str,
    /// Its content.
    pub text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

macro_rules! assets {
    ($($kind:ident $name:literal;)*) => {
        [$(Asset { name: $name, kind: $kind, text: include_str!(concat!("../assets/", $name)) }),*]
    };
}

/// All files of the page; the first is the page itself.
static ASSETS: [Asset; 17] = assets! {
    HTML "index.html";
    CSS "style.css";
    PICTURE "icon.svg";
    SCRIPT "main.js";
    SCRIPT "dom.js";
    SCRIPT "server.js";
    SCRIPT "json.js";
    SCRIPT "metrics.js";
    SCRIPT "plots.js";
    SCRIPT "overview.js";
    SCRIPT "models.js";
    SCRIPT "tryit.js";
    SCRIPT "inputs.js";
    SCRIPT "tensors.js";
    SCRIPT "waterfall.js";
    SCRIPT "memory.js";
    SCRIPT "requests.js";
};

/// The page itself.
pub fn index() -> &'static Asset {
    &ASSETS[0]
}

/// The file of this path below `/ui/`.
pub fn find(name: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.name == name)
}

impl Asset {
    /// The ETag: a hash of the content.
    pub fn tag(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.text.hash(&mut hasher);
        format!("\"{:016x}\"", hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_names_another_server() {
        for asset in &ASSETS {
            for (at, line) in asset.text.lines().enumerate() {
                let has_foreign =
                    line.split("http").skip(1).any(|rest| rest.starts_with("://") || rest.starts_with("s://"));
                let is_namespace = line.contains("http://www.w3.org/");
                assert!(!has_foreign || is_namespace, "{}:{} {line}", asset.name, at + 1);
            }
        }
    }

    #[test]
    fn the_page_and_its_scripts_name_files_that_are_there() {
        let names = |text: &'static str, before: &'static str| {
            text.split(before).skip(1).filter_map(|rest| rest.split(['"', '\'']).next()).collect::<Vec<_>>()
        };
        let named = names(index().text, "\"/ui/");
        assert!(named.contains(&"main.js") && named.contains(&"style.css"), "{named:?}");
        for name in named.into_iter().chain(ASSETS.iter().flat_map(|asset| names(asset.text, "from \"./"))) {
            assert!(find(name).is_some(), "{name}");
        }
    }

    #[test]
    fn no_file_of_the_page_needs_an_exception_from_its_policy() {
        let html = index().text;
        for inline in [" style=", " onclick=", " onload=", "<style", "javascript:"] {
            assert!(!html.contains(inline), "{inline}");
        }
        assert_eq!(html.matches("<script").count(), html.matches("<script type=\"module\" src=\"/ui/").count());
        for asset in ASSETS.iter().filter(|asset| asset.kind == SCRIPT) {
            for sink in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"] {
                assert!(!asset.text.contains(sink), "{} {sink}", asset.name);
            }
        }
    }
}
