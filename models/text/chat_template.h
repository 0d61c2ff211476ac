#pragma once

#include <filesystem>

#include "models/spec/model_spec.h"

namespace troupe::models {

/// Holds the chat template of a tokenizer's folder, `chat_template.jinja` and the setting in
/// `tokenizer_config.json`, against the frame that its `use` puts around a prompt
/// (spec::kQwenChat, spec::kQwenChatWithoutThinking). The forms
/// that Qwen's templates have are known: a user's message as it is, between `<|im_start|>user` and
/// `<|im_end|>`; the head of an answer, where it is asked for; nothing of their own before the
/// messages. Throws std::runtime_error naming the file and what is missing or different.
void check_chat_template(const std::filesystem::path& folder, spec::ChatTemplate use);

}  // namespace troupe::models
