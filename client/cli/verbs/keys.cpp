#include <filesystem>
#include <iostream>

#include "base/suggest.h"
#include "client/cli/json.h"
#include "client/cli/terminal.h"
#include "client/cli/verb.h"
#include "transport/control/key_folder.h"

namespace troupe::cli {
namespace {

const std::vector<std::string> kActions{"make", "add", "role", "list", "remove"};

class KeysVerb : public Verb {
 public:
  explicit KeysVerb(Options& options) : Verb(options) {
    app_->add_option("ACTION", action_, "make (if left out), add, role, list or remove")
        ->check(one_of(kActions))
        ->type_name("");
    app_->add_option("NAME", name_, "With add, role and remove: the client")->type_name("");
    add_keys_option(*app_, folder_, "The cluster's folder of keys");
    app_->add_option("--output", output_,
                     "With add: the folder to make for the client (default: for-NAME in --keys)")
        ->type_name("DIR");
    app_->add_option("--public", public_,
                     "With add: the public key of a pair that the client made itself")
        ->type_name("KEY");
    app_->add_option("--role", role_,
                     "With add and role: what the client may do: own-jobs, all-jobs (everybody's, "
                     "and users' actors) or operate (everything)")
        ->check(one_of({"own-jobs", "all-jobs", "operate"}))
        ->type_name("ROLE")
        ->capture_default_str();
    app_->add_flag("--force", force_, "Overwrite keys that are there already");
    set_footer(
        "`troupe keys` makes a server's pair and a client's, which is allowed in as \"default\". "
        "`add` makes a folder for one client more, to be carried to where it runs; nobody else may "
        "see it. `role` and `remove` count from the client's next connection on.",
        {"troupe keys --keys ~/troupe-keys",
         "troupe start --listen tcp://0.0.0.0:7400 --keys ~/troupe-keys --model DIR",
         "troupe keys add laptop --role own-jobs --keys ~/keys --output laptop-keys",
         "troupe status --connect tcp://HOST:7400 --keys laptop-keys"},
        "security.md#keys");
  }

  int run() override {
    if (folder_.empty()) throw UsageError("keys needs --keys DIR, or TROUPE_KEYS");
    if (action_ == "make") return make();
    if (action_ == "add") return add();
    if (action_ == "role") return change_role();
    if (action_ == "list") return list();
    return remove();
  }

 private:
  void refuse(std::initializer_list<const char*> options) const {
    for (const char* option : options) {
      if (app_->count(option) > 0)
        throw UsageError(std::string(option) + " does not go with keys " + action_);
    }
  }
  void need_name() const {
    if (name_.empty()) throw UsageError("keys " + action_ + " needs the client's NAME");
    if (!control::is_client_name(name_))
      throw UsageError("keys " + action_ + " \"" + name_ +
                       "\": a name has 1 to 64 of A-Z a-z 0-9 . _ - and begins with no dot");
  }

  int make() {
    refuse({"NAME", "--output", "--public", "--role"});
    const control::KeyFolder keys(folder_);
    naming("--keys", [&] { return keys.make(force_); });
    tell({{"keys", folder_}, {"server", keys.server().public_key}},
         "keys      " + folder_ + "\nserver    " + keys.server().public_key +
             "\nallowed   default (client.key there)\n");
    return kOk;
  }

  int add() {
    need_name();
    const control::KeyFolder keys(folder_);
    if (!public_.empty()) {
      refuse({"--output", "--force"});
      if (!control::is_key(public_))
        throw UsageError("--public is no key: one has 40 characters of Z85");
      naming("--keys", [&] { keys.add({name_, public_, role()}); });
      tell({{"name", name_}, {"public", public_}, {"role", role_}},
           "allowed   " + name_ + "\nrole      " + role_ + "\n");
      return kOk;
    }
    for (const auto& client : naming("--keys", [&] { return keys.clients(); })) {
      if (client.name == name_)
        throw CommandError({ErrorCode::failed, folder_ + "/clients: " + name_ +
                                                   " is there already; "
                                                   "`troupe keys remove " +
                                                   name_ + "` takes it away"});
    }
    if (output_.empty()) output_ = (std::filesystem::path(folder_) / ("for-" + name_)).string();
    const std::string key = naming("--output", [&] { return keys.make_client(output_, force_); });
    naming("--keys", [&] { keys.add({name_, key, role()}); });
    tell({{"name", name_}, {"public", key}, {"keys", output_}, {"role", role_}},
         "allowed   " + name_ + "\nrole      " + role_ + "\nkeys      " + output_ + "\n");
    return kOk;
  }

  int change_role() {
    refuse({"--output", "--public", "--force"});
    need_name();
    if (app_->count("--role") == 0) throw UsageError("keys role needs --role ROLE");
    naming("--keys", [&] { return control::KeyFolder(folder_).set_role(name_, role()); });
    tell({{"name", name_}, {"role", role_}},
         "role      " + role_ + " for " + name_ + " (links that are up stay as they are)\n");
    return kOk;
  }

  control::ClientRole role() const { return *control::role_from(role_); }

  int list() {
    refuse({"NAME", "--output", "--public", "--force", "--role"});
    const auto clients = naming("--keys", [&] { return control::KeyFolder(folder_).clients(); });
    if (json()) {
      nlohmann::json all = nlohmann::json::array();
      for (const auto& client : clients)
        all.push_back({{"name", client.name},
                       {"public", client.public_key},
                       {"role", control::to_string(client.role)}});
      print_json({{"clients", all}});
      return kOk;
    }
    std::vector<Row> rows;
    for (const auto& client : clients)
      rows.push_back({client.name, control::to_string(client.role), client.public_key});
    std::cout << (rows.empty() ? "nobody is allowed in\n"
                               : table({"NAME", "ROLE", "PUBLIC KEY"}, rows, 0))
              << std::flush;
    return kOk;
  }

  int remove() {
    refuse({"--output", "--public", "--force", "--role"});
    need_name();
    naming("--keys", [&] { return control::KeyFolder(folder_).remove(name_); });
    tell({{"removed", name_}}, "removed   " + name_ + " (links that are up stay until they end)\n");
    return kOk;
  }

  void tell(const nlohmann::json& document, const std::string& text) const {
    if (json()) {
      print_json(document);
    } else {
      std::cout << text << std::flush;
    }
  }

  std::string action_ = "make";
  std::string name_;
  std::string folder_;
  std::string output_;
  std::string public_;
  std::string role_ = "operate";
  bool force_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_keys(Options& options) {
  return std::make_unique<KeysVerb>(options);
}

}  // namespace troupe::cli
