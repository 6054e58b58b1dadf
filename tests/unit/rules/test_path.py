"""One spelling for each path, so that no rule is dodged by writing it differently."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidRule
from headgate.rules.path import Pattern, normal_path, routed_path, segments_of


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("/api/search", "/api/search"),
        ("/", "/"),
        ("", "/"),
        ("api/search", "/api/search"),
        ("/api/search/", "/api/search"),
        ("//api///search//", "/api/search"),
        ("/./api/./search/.", "/api/search"),
        ("/api/x/../search", "/api/search"),
        ("/../../api/search", "/api/search"),
        ("/api/search/..", "/api"),
        ("/..", "/"),
        ("/api/%2e%2E/search", "/search"),
        ("/api/%2e/search", "/api/search"),
        ("/%61pi/se%61rch", "/api/search"),
        ("/%7Euser", "/~user"),
        ("/%7euser", "/~user"),
        ("/caf%c3%a9", "/caf%C3%A9"),
        ("/café", "/caf%C3%A9"),
        ("/a b", "/a%20b"),
        ("/a%20b", "/a%20b"),
        ("/a%2fb", "/a%2Fb"),
        ("/a%2Fb", "/a%2Fb"),
        ("/v1%3Asearch", "/v1:search"),
        ("/v1:search", "/v1:search"),
        ("/100%", "/100%25"),
        ("/100%25", "/100%25"),
        ("/%zz", "/%25zz"),
        ("/%2561pi", "/%2561pi"),
        ("/api/search?q=/../x", "/api/search"),
        ("/api/search#top", "/api/search"),
        ("?q=1", "/"),
        ("/...", "/..."),
        ("/..a/.b", "/..a/.b"),
        ("/%ff", "/%FF"),
        ("/{id}", "/%7Bid%7D"),
        ("/a\x00b", "/a%00b"),
        ("/\ud800", "/%ED%A0%80"),
        ("/Search", "/Search"),
    ],
)
def test_every_path_has_one_spelling(path: str, normal: str) -> None:
    assert normal_path(path) == normal


@given(st.text(alphabet=st.sampled_from("/.%2eEfFaA?#~é {*:\\"), max_size=30) | st.text(max_size=30))
def test_a_normal_path_stays_as_it_is(path: str) -> None:
    normal = normal_path(path)
    assert normal_path(normal) == normal
    assert normal.startswith("/")
    assert "//" not in normal
    assert not {".", ".."} & set(normal.split("/"))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("/", "/"),
        ("/api/search", "/api/search"),
        ("/api/search/", "/api/search"),
        ("//api//search", "/api/search"),
        ("/users/{id}/posts", "/users/{}/posts"),
        ("/users/{user_id}/posts", "/users/{}/posts"),
        ("/api/*", "/api/*"),
        ("/*", "/*"),
        ("*", "/*"),
        ("/caf%c3%a9/%7euser", "/caf%C3%A9/~user"),
        ("/a%2ab/%7Bid%7D", "/a*b/%7Bid%7D"),
        ("/users/{id}/*", "/users/{}/*"),
        ("/v1/rules:dry-run", "/v1/rules:dry-run"),
        ("/v1/:/:8080/a:b/*", "/v1/:/:8080/a:b/*"),
        ("/%3Cid%3E/%3Aid", "/%3Cid%3E/:id"),
    ],
)
def test_patterns(text: str, canonical: str) -> None:
    assert str(Pattern.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("api/search", "must be patterns like"),
        ("", "must be patterns like"),
        (5, "must be patterns like"),
        ("/api?x=1", "query"),
        ("/api#x", "fragment"),
        ("/api/*/posts", "* inside"),
        ("/api/*.png", "* inside"),
        ("/users/{id}.json", "a parameter is a whole segment"),
        ("/users/{}", "a parameter is a whole segment"),
        ("/users/{id", "a parameter is a whole segment"),
        ("/users/{id:int}", "a parameter is a whole segment"),
        ("/users/<id>", "cannot read '<id>'; a parameter is a whole segment in braces: '/users/{id}'"),
        ("/users/<int:id>/posts", "cannot read '<int:id>'; a parameter is a whole segment in braces"),
        ("/users/:id", "cannot read ':id'; a parameter is a whole segment in braces: '/users/{id}'"),
        ("/:user/posts/*", "cannot read ':user'; a parameter is a whole segment in braces"),
        ("/users/:id(\\d+)", "a parameter is a whole segment in braces"),
        ("/a/../b", "'..' as a segment"),
        ("/a/%2e", "'%2e' as a segment"),
    ],
)
def test_patterns_that_make_no_sense(text: str, complaint: str) -> None:
    with pytest.raises(InvalidRule) as caught:
        Pattern.parse(text)
    assert complaint in str(caught.value)
    if text:
        assert repr(text) in str(caught.value)


def test_patterns_sort_by_how_specific_they_are() -> None:
    texts = ["/*", "/{x}/*", "/a/{x}", "/a/*", "/a/b", "/{x}/b", "/a/{x}/*", "/a/b/*"]
    in_order = ["/a/b", "/a/b/*", "/a/{x}", "/a/{x}/*", "/a/*", "/{x}/b", "/{x}/*", "/*"]
    assert sorted(texts, key=lambda text: Pattern.parse(text).shape) == in_order


@pytest.mark.parametrize(
    ("decoded", "normal"),
    [
        ("/files/a b", "/files/a%20b"),
        ("/files//a/", "/files/a"),
        ("/files/..", "/files/%252E%252E"),
        ("/files/./../x", "/files/%252E/%252E%252E/x"),
        ("..", "/%252E%252E"),
        ("/files/...", "/files/..."),
        ("/files/.x", "/files/.x"),
        ("/files/?x", "/files/%3Fx"),
        ("/files/#x", "/files/%23x"),
        ("/files/%2e%2E", "/files/%252e%252E"),
        ("/files/\udcff", "/files/%ED%B3%BF"),
        ("*", "/*"),
        ("http://example.org/files/..", "/files/%252E%252E"),
        ("http://example.org/files/x;y?z", "/files/x"),
        ("http://[/files/x", "/http:/%5B/files/x"),
    ],
)
def test_a_routed_path_keeps_every_segment(decoded: str, normal: str) -> None:
    assert normal_path(routed_path(decoded)) == normal


@given(st.lists(st.text("ab.%?#2Ee ", min_size=1), min_size=1))
def test_a_routed_path_has_as_many_segments_as_the_app_sees(segments: list[str]) -> None:
    assert len(segments_of(normal_path(routed_path("/" + "/".join(segments))))) == len(segments)
