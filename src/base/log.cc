#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>

namespace phalanx {
namespace {

std::shared_ptr<spdlog::logger> MakeLogger() {
  auto logger = std::make_shared<spdlog::logger>("phalanx", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");
  logger->flush_on(spdlog::level::info);
  return logger;
}

std::string Quoted(const std::string& value) {
  auto plain = [](unsigned char c) { return c > 0x20 && c != 0x7f && c != '"' && c != '\\'; };
  if (!value.empty() && std::all_of(value.begin(), value.end(), plain)) return value;
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '\n') {
      quoted += "\\n";
    } else {
      quoted += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
    }
  }
  return quoted + '"';
}

}  // namespace

std::string LogText(const std::string& event, const LogFields& fields) {
  std::string text = event;
  for (const auto& [key, value] : fields) text += fmt::format(" {}={}", key, Quoted(value));
  return text;
}

void Log(LogLevel level, const std::string& event, const LogFields& fields) {
  static const std::shared_ptr<spdlog::logger> logger = MakeLogger();
  const spdlog::level::level_enum levels[] = {spdlog::level::info, spdlog::level::warn, spdlog::level::err};
  logger->log(levels[static_cast<int>(level)], "{}", LogText(event, fields));
}

}  // namespace phalanx
