#include "web/http_message.h"

#include "tests/support/doctest.h"
#include "web/api_error.h"
#include "web/router.h"

using namespace troupe::web;

TEST_CASE("a target: path and query, decoded") {
  RequestHead head;
  CHECK(parse_target("/a%2Fb/c%20d/?x=1&y=a+b%26&x=2&z", head));
  CHECK(head.path == std::vector<std::string>{"a/b", "c d"});
  CHECK(head.query == std::map<std::string, std::string>{{"x", "2"}, {"y", "a b&"}, {"z", ""}});
  CHECK(head.path_text() == "/a%2Fb/c%20d/");
  RequestHead absolute;
  absolute.fields["host"] = "127.0.0.1:7480";
  CHECK(parse_target("http://127.0.0.1:7480/a?b=c", absolute));
  CHECK(absolute.path == std::vector<std::string>{"a"});
  CHECK(absolute.target == "/a?b=c");
  CHECK(parse_target("https://127.0.0.1:7480", absolute));
  CHECK_FALSE(parse_target("http://elsewhere/", absolute));
  for (const char* wrong : {"", "*", "http:/x", "http:///x", "http://a@b/", "ftp://x/", "/%", "/%4",
                            "/%zz", "/?%g0=1", "/?a=%1"}) {
    RequestHead none;
    CAPTURE(wrong);
    CHECK_FALSE(parse_target(wrong, none));
  }
}

TEST_CASE("routes: segments, parameters, methods") {
  Router router;
  router.add({"GET", "/jobs", Access::user, 0, {}});
  router.add({"POST", "/jobs", Access::user, 7, {}});
  router.add({"GET", "/jobs/{}/pictures/{}", Access::user, 0, {}});
  const auto match = [&](const char* method, const char* target) {
    RequestHead head;
    head.method = method;
    REQUIRE(parse_target(target, head));
    return router.match(head);
  };
  CHECK(match("POST", "/jobs?x").route->most_body == 7);
  CHECK(match("HEAD", "/jobs").route->method == "GET");
  CHECK(match("GET", "/jobs/3/pictures/a%2Fb").params == std::vector<std::string>{"3", "a/b"});
  CHECK(match("DELETE", "/jobs").allow == "GET, POST");
  CHECK(match("GET", "/jobs/3").route == nullptr);
  CHECK(match("GET", "/jobs/3").allow.empty());
}

TEST_CASE("what stands behind the ? is read by the call, or refused by its name") {
  const auto refusal = [](const char* target, std::vector<std::string> known) -> std::string {
    RequestHead head;
    REQUIRE(parse_target(target, head));
    try {
      check_query({"GET", "/jobs", Access::user, 0, {}, std::move(known)}, head);
    } catch (const ApiError& error) {
      CHECK(error.status == 400);
      CHECK(error.code == "unknown_field");
      return error.param + ": " + error.what();
    }
    return "";
  };
  CHECK(refusal("/jobs", {}).empty());
  CHECK(refusal("/jobs?limit=1&before=2", {"limit", "before"}).empty());
  CHECK(refusal("/jobs?limt=1", {"limit", "before"}) ==
        "limt: \"limt\" is no query parameter of this call; did you mean limit?");
  CHECK(refusal("/jobs?foo=1", {}) ==
        "foo: \"foo\" is no query parameter of this call, which has none");
}

TEST_CASE("an event: each line of its data by itself") {
  CHECK(event_text("progress", "{}") == "event: progress\ndata: {}\n\n");
  CHECK(event_text("", "a\nb") == "data: a\ndata: b\n\n");
  CHECK(event_text("x", "") == "event: x\ndata: \n\n");
}
