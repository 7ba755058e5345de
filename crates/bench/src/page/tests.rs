//! Does the page hold what was measured?

use super::*;
use crate::samples;

fn count(text: &str, pattern: &str) -> usize {
    text.matches(pattern).count()
}

fn section_of<'a>(page: &'a str, id: &str) -> &'a str {
    let from = page.find(&format!("<section id=\"{id}\">")).unwrap_or_else(|| panic!("no section {id}"));
    let part = &page[from..];
    &part[..part.find("</section>").expect("a section ends")]
}

#[test]
fn each_section_has_its_pictures() {
    let page = page(&samples::results());
    for (id, pictures) in [
        ("latency-over-throughput", 1),
        ("time", 1),
        ("histograms", 4),
        ("sizes-http", 1),
        ("sizes-grpc", 1),
        ("configs", 1),
    ] {
        assert_eq!(count(section_of(&page, id), "<svg "), pictures, "{id}");
    }
    assert_eq!(count(section_of(&page, "figures"), "<tr>"), 5);
    assert_eq!(count(section_of(&page, "costs"), "<tr>"), 5);
    assert_eq!(count(section_of(&page, "sizes-http"), "<tr>"), 9);
    assert_eq!(count(section_of(&page, "configs"), "<tr>"), 6);
    // For a look at it: NERITE_WRITE_BENCH_PAGE=page.html cargo test -p nerite-bench each_section
    if let Some(place) = std::env::var_os("NERITE_WRITE_BENCH_PAGE") {
        std::fs::write(place, &page).expect("the page can be written");
    }
}

#[test]
fn nothing_comes_from_elsewhere() {
    let page = page(&samples::results());
    for word in ["<script", "<link", "<img", "@import", "url(", "src="] {
        assert_eq!(count(&page, word), 0, "{word}");
    }
    assert_eq!(count(&page, "http://"), count(&page, "xmlns=\"http://www.w3.org/2000/svg\""));
}

#[test]
fn names_are_escaped() {
    let mut results = samples::results();
    results.about.model = "a<b>&\"c\"".to_owned();
    let page = page(&results);
    assert_eq!(count(&page, "a&lt;b&gt;&amp;&quot;c&quot;"), 3);
    assert_eq!(count(&page, "A &lt;fast&gt; one"), 1);
    assert_eq!(count(&page, "a<b>"), 0);
}

#[test]
fn a_page_without_sweeps_has_no_sections_for_them() {
    let page = page(&Results { sizes: Vec::new(), configs: Vec::new(), ..samples::results() });
    assert_eq!(count(&page, "<section "), 6);
    let page =
        super::page(&Results { points: Vec::new(), sizes: Vec::new(), configs: Vec::new(), ..samples::results() });
    assert_eq!(count(&page, "<section "), 1);
}
