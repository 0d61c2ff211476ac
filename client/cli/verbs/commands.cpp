#include "client/cli/verb.h"
#include "client/repl/command.h"

namespace troupe::repl {

const std::vector<Command>& command_table() {
  static const std::vector<Command> kTable = {
#ifdef TROUPE_WITH_CLUSTER
      {.name = "run",
       .summary = "Make pictures with a cluster of its own, started for it",
       .verb = cli::make_run},
      {.name = "start",
       .summary = "Start a cluster: the controller and its actors",
       .verb = cli::make_start},
      {.name = "join",
       .summary = "Give a cluster this host's actors, until Ctrl-C or the cluster's end",
       .verb = cli::make_join},
#endif
      {.name = "serve",
       .summary = "Answer HTTP: OpenAI's API, jobs, and a page for browsers",
       .verb = cli::make_serve},
      {.name = "status",
       .summary = "Say who lives where, in which groups with which rank, doing what",
       .verb = cli::make_status},
      {.name = "top",
       .summary = "Show actors, jobs and throughput, full screen, as they change",
       .verb = cli::make_top},
      {.name = "nodes", .summary = "The hosts and what is on each", .run = nodes},
      {.name = "actors", .summary = "The actors and what each is doing", .run = actors},
      {.name = "groups", .summary = "Who works together, by axis of the mesh", .run = groups},
      {.name = "submit",
       .arguments = "--prompt TEXT [OPTIONS]",
       .summary = "Make pictures on a running cluster",
       .details =
           "The options are those of `troupe submit`; `submit --help` lists them. The job goes on\n"
           "when the console is left. --output FILE.png waits for it and writes its pictures.",
       .shared = cli::make_submit},
      {.name = "wait",
       .summary = "Follow a job that was handed in with --detach, and write its pictures",
       .verb = cli::make_wait},
      {.name = "follow",
       .arguments = "JOB [OPTIONS]",
       .summary = "Show a job's progress until it ends",
       .details = "Ctrl-C stops following; the job goes on. With --output FILE.png its pictures "
                  "are written,\n"
                  "with --save-latents F.safetensors its latents, if it was asked for them.",
       .completes = {Argument::job},
       .shared = cli::make_follow,
       .console_alone = true},
      {.name = "jobs",
       .arguments = "[ID] [OPTIONS]",
       .summary = "List the jobs: queued, running and ended; or one alone",
       .details = "--limit N shows so many, --skip N leaves out so many before that.",
       .completes = {Argument::job},
       .shared = cli::make_jobs},
      {.name = "queue", .summary = "The jobs that wait, in their order", .run = queue},
      {.name = "failures",
       .arguments = "[JOB]",
       .summary = "The last failures, or what had happened before one",
       .details =
           "The controller remembers the last 16 failures of jobs. With --keep-logs each is\n"
           "written to that folder, too, as flight-job-N.json; of a batch, whose jobs begin anew\n"
           "after it, as flight-batch-N.json.",
       .completes = {Argument::job},
       .most = 1,
       .run = failures},
      {.name = "cancel",
       .arguments = "ID",
       .summary = "End a job at its next micro-step",
       .completes = {Argument::job},
       .shared = cli::make_cancel},
      {.name = "drain",
       .summary = "Empty hosts or actors without losing a job; then their actors leave",
       .verb = cli::make_drain},
      {.name = "stop",
       .summary = "End the cluster; running jobs fail, those in a journal are kept",
       .verb = cli::make_stop},
      {.name = "repl",
       .summary = "A console on a running cluster: look inside, pause, step, until",
       .verb = cli::make_repl},
      {.name = "graph",
       .arguments = "JOB [all]",
       .summary = "A job's task graph, and where each micro-step is",
       .details =
           "waiting: not issued yet. issued: it lies at the actors named, or runs there. done.\n"
           "Micro-steps that are all waiting or all done take one line; `all` gives each its own.",
       .completes = {Argument::job, Argument::all},
       .least = 1,
       .most = 2,
       .run = graph},
      {.name = "pause",
       .arguments = "JOB",
       .summary = "Issue no more micro-steps of a job",
       .details =
           "What is issued already runs to its end: the job stands still a few micro-steps later.",
       .completes = {Argument::job},
       .least = 1,
       .most = 1,
       .run = pause},
      {.name = "step",
       .arguments = "JOB [N]",
       .summary = "Issue one more micro-step of a paused job, or N of them",
       .completes = {Argument::job},
       .least = 1,
       .most = 2,
       .run = step},
      {.name = "until",
       .arguments = "JOB STEP|nan [SECONDS]",
       .summary = "Let a job go on to the end of a step, or to a NaN, and pause it there",
       .details = "Steps count from 0. Whether it runs, waits or is paused: micro-steps up to STEP "
                  "are issued,\n"
                  "and no more; with nan all are, until one makes NaN or infinity. Waits for that, "
                  "600 s where\n"
                  "nothing is said; Ctrl-C ends only the waiting.",
       .completes = {Argument::job, Argument::not_finite},
       .least = 2,
       .most = 3,
       .run = until},
      {.name = "resume",
       .arguments = "JOB",
       .summary = "Let a paused job go on",
       .completes = {Argument::job},
       .least = 1,
       .most = 1,
       .run = resume},
      {.name = "dump",
       .arguments = "JOB FILE.safetensors",
       .summary = "Write a job's latents as they are now",
       .details =
           "float32 [n, channels, rows, columns], as `submit --init-latents` reads them. Taken\n"
           "from the actors between two micro-steps; pause the job to have all rows of one step.",
       .completes = {Argument::job, Argument::latents_file},
       .least = 2,
       .most = 2,
       .run = dump},
      {.name = "preview",
       .arguments = "JOB FILE.png",
       .summary = "A rough picture of a job's latents as they are now",
       .details = "The first picture, decoded at a quarter of its size by one of the job's actors.",
       .completes = {Argument::job, Argument::picture_file},
       .least = 2,
       .most = 2,
       .run = preview},
      {.name = "mailbox",
       .arguments = "ACTOR",
       .summary = "What an actor is doing and what waits in its mailbox",
       .details = "Answered at once, also while the actor is inside a long task.",
       .completes = {Argument::actor},
       .least = 1,
       .most = 1,
       .run = mailbox},
      {.name = "tensors",
       .arguments = "ACTOR JOB",
       .summary = "What a job keeps at an actor: K,V, latents, caption, transfers",
       .details =
           "Looked at between two entries of the actor's mailbox; when it is inside one for long,\n"
           "the answer says so.",
       .completes = {Argument::actor, Argument::job},
       .least = 2,
       .most = 2,
       .run = tensors},
      {.name = "slice",
       .arguments = "ACTOR JOB NAME [SLICE]",
       .summary = "Values of one of these tensors, as slice 0 3 latents [0,0,:4,:4]",
       .details = "NAME as `tensors` shows it, in quotes where it has spaces. SLICE has for each "
                  "dimension\n"
                  "an index, i:k or :, at most 4096 values in all.",
       .completes = {Argument::actor, Argument::job, Argument::tensor},
       .least = 3,
       .most = 4,
       .run = slice},
      {.name = "inject",
       .arguments = "FAULT ACTOR [SECONDS [PHASE]]",
       .summary = "A fault: kill, stop, exception, nan, delay, device-error, hold or release",
       .details =
           "  inject kill ACTOR           SIGKILL\n"
           "  inject stop ACTOR SECONDS   SIGSTOP, then SIGCONT\n"
           "  inject exception ACTOR      its next task throws\n"
           "  inject nan ACTOR            its next micro-step meets a NaN\n"
           "  inject delay ACTOR SECONDS  its next task begins later\n"
           "  inject device-error ACTOR   its next task loses the device, and with it the process\n"
           "  inject hold ACTOR SECONDS PHASE  it stands still when it comes to PHASE: loading,\n"
           "      connecting, beginning, text, step [STEP] [patch PATCH], decode or ending\n"
           "  inject release ACTOR        it goes on, or will not be held\n"
           "An actor without a job meets exception, nan, delay, device-error and hold in its next "
           "job.",
       .completes = {Argument::fault, Argument::actor, Argument::seconds, Argument::hold_phase},
       .least = 2,
       .most = 7,
       .run = inject},
      {.name = "logs",
       .arguments = "[WHO] [LINES] [OPTIONS]",
       .summary = "Print what an actor has written, or the controller has to say",
       .details =
           "WHO is an actor's ID, or controller. --follow goes on as more comes, until Ctrl-C.",
       .completes = {Argument::speaker},
       .shared = cli::make_logs},
      {.name = "timeline",
       .arguments = "ID|all [-o FILE.json]",
       .summary = "Write what ran when, for Perfetto",
       .details = "Open the file at https://ui.perfetto.dev or chrome://tracing.",
       .completes = {Argument::job_or_all, Argument::output_option, Argument::trace_file},
       .shared = cli::make_timeline},
      {.name = "classes",
       .summary = "Users' classes of actors, their methods and types",
       .run = classes},
      {.name = "user-actors",
       .summary = "Users' actors: what each is and where it lives",
       .run = user_actors},
      {.name = "call",
       .arguments = "ID|NAME METHOD [ARGUMENT…]",
       .summary = "Call a method of a user's actor and show what it gives",
       .details = "An argument that is JSON stands as it is, every other word is a string:\n"
                  "  call counter add 5\n"
                  "  call 3 describe \"two words\" [1,2]",
       .completes = {Argument::user_actor, Argument::method},
       .least = 2,
       .most = 64,
       .run = call},
#ifdef TROUPE_WITH_PLAN
      {.name = "plan",
       .summary =
           "Print mesh, groups, stages, patches and memory of a request, or why it is impossible",
       .verb = cli::make_plan},
#endif
      {.name = "inspect",
       .summary = "Print the parameters in a picture or clip, the tensors in a safetensors file, "
                  "or what a model is",
       .verb = cli::make_inspect},
      {.name = "models",
       .summary = "List the models on this disk that run by their name, and the short names",
       .verb = cli::make_models},
      {.name = "keys",
       .summary = "Make the keys of a cluster that listens on tcp, and say who may come in",
       .verb = cli::make_keys},
      {.name = "completion",
       .summary = "Print the script that completes `troupe` in a shell",
       .verb = cli::make_completion},
      {.name = "man", .summary = "Print a manual page, for man", .verb = cli::make_man},
      {.name = "help",
       .arguments = "[COMMAND]",
       .summary = "This, or more about one command",
       .details = "? does the same.",
       .completes = {Argument::command},
       .most = 1,
       .run = help,
       .aliases = {"?", "h"}},
      {.name = "quit",
       .summary = "Leave; jobs go on",
       .details = "q and Ctrl-D do the same.",
       .run = quit,
       .aliases = {"exit", "q"}},
  };
  return kTable;
}

}  // namespace troupe::repl

namespace troupe::cli {

std::vector<std::unique_ptr<Verb>> make_verbs(Options& program) {
  std::vector<std::unique_ptr<Verb>> verbs;
  for (const repl::Command& command : repl::command_table()) {
    if (!command.in_shell()) continue;
    Options& options = program.add_command(command.name, command.summary);
    if (command.shared)
      verbs.push_back(command.shared(options, Where::shell));
    else
      verbs.push_back(command.verb(options));
  }
  return verbs;
}

}  // namespace troupe::cli
