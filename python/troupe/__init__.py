"""Makes pictures and clips on a Troupe cluster, over HTTP. See docs/python.md."""
from .aio import AsyncJob, AsyncTroupePipeline
from .client import Client, Job, JobEvent, JobInfo
from .errors import (APIConnectionError, APIStatusError, APITimeoutError, AuthenticationError, BadRequestError,
                     ConflictError, InternalServerError, JobCancelledError, JobError, JobFailedError, NotFoundError,
                     PermissionDeniedError, RateLimitError, TroupeError, TroupeWarning)
from .local import LocalCluster, local
from .pipeline import TroupePipeline, TroupePipelineOutput

__version__ = "0.1.0"
__all__ = [
    "APIConnectionError", "APIStatusError", "APITimeoutError", "AsyncJob", "AsyncTroupePipeline", "AuthenticationError",
    "BadRequestError", "Client", "ConflictError", "InternalServerError", "Job", "JobCancelledError", "JobError", "JobEvent",
    "JobFailedError", "JobInfo", "LocalCluster", "NotFoundError", "PermissionDeniedError", "RateLimitError", "TroupeError",
    "TroupePipeline", "TroupePipelineOutput", "TroupeWarning", "local",
]
