#pragma once
#include <memory>
#include <string>

#include "web/api_error.h"
#include "web/http_message.h"
#include "web/job_service.h"
#include "web/router.h"

namespace troupe::web {

/// What the parts of the API are made of. They live as long as the gateway.
struct Api {
  JobService& service;
  Router& router;
};

Response json_response(const nlohmann::json& document, int status = 200);
Response error_response(const ApiError& error);
/// Sends what a handler of a later answer throws, too.
void answer_error(const ReplyPtr& reply, const ApiError& error);

/// The job of a route's {}, if the caller may see it; else throws ApiError 404.
JobPtr job_of(const Api& api, const Request& request);
bool may_see(const Caller& caller, const Job& job);

/// The request's job ends with its client, unless it is detached: cancels when the client goes.
/// Listens for as long as the job has not ended and the client is there.
void follow_for(const Api& api, const JobPtr& job, const ReplyPtr& reply,
                JobBoard::Listener listener, bool cancel_when_gone);

/// Handlers of each part: docs/http.md lists the calls.
void add_jobs_routes(Api& api);     // /api/v1/jobs…
void add_images_routes(Api& api);   // /v1/images/…
void add_cluster_routes(Api& api);  // /health, /v1/models, /api/v1/cluster…

}  // namespace troupe::web
