#include "names.h"

#include <stdexcept>
#include <utility>

namespace headrace {
namespace {

template <typename T>
using Entry = std::pair<const char*, T>;

constexpr Entry<DType> kTypes[] = {
    {"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}, {"i8", DType::i8}, {"e4m3", DType::e4m3}, {"i4", DType::i4}};
constexpr Entry<WeightFormat> kFormats[] = {{"f32", WeightFormat::f32},
                                            {"bf16", WeightFormat::bf16},
                                            {"f16", WeightFormat::f16},
                                            {"int8", WeightFormat::int8},
                                            {"int6", WeightFormat::int6},
                                            {"int5", WeightFormat::int5},
                                            {"int4", WeightFormat::int4},
                                            {"int3", WeightFormat::int3},
                                            {"int2", WeightFormat::int2},
                                            {"table4", WeightFormat::table4},
                                            {"e4m3", WeightFormat::e4m3},
                                            {"e5m2", WeightFormat::e5m2}};
constexpr Entry<Gate> kGates[] = {
    {"none", Gate::none}, {"silu", Gate::silu}, {"gelu", Gate::gelu}, {"gelu_tanh", Gate::gelu_tanh},
    {"relu", Gate::relu}, {"relu2", Gate::relu2}, {"swiglu_oai", Gate::swiglu_oai}};
constexpr Entry<Scores> kScores[] = {
    {"softmax", Scores::softmax}, {"sigmoid", Scores::sigmoid}, {"softmax_chosen", Scores::softmax_chosen}};
constexpr Entry<GroupScore> kGroupScores[] = {{"max", GroupScore::max}, {"top2", GroupScore::top2}};
constexpr Entry<Epilogue> kEpilogues[] = {
    {"store", Epilogue::store}, {"add", Epilogue::add}, {"gate", Epilogue::gate}, {"multiply", Epilogue::multiply}};

template <typename T, std::size_t N>
T find(const Entry<T> (&entries)[N], const char* what, const std::string& name) {
    for (const auto& [known, value] : entries) {
        if (name == known) return value;
    }
    throw std::invalid_argument(std::string(what) + " " + name + " is unknown");
}

template <typename T, std::size_t N>
const char* find_name(const Entry<T> (&entries)[N], T value) {
    for (const auto& [name, known] : entries) {
        if (known == value) return name;
    }
    return "";
}

}  // namespace

DType dtype_of(const std::string& name) { return find(kTypes, "type", name); }
WeightFormat weight_format_of(const std::string& name) { return find(kFormats, "weight format", name); }
Gate gate_of(const std::string& name) { return find(kGates, "gate", name); }
Scores scores_of(const std::string& name) { return find(kScores, "scores", name); }
GroupScore group_score_of(const std::string& name) { return find(kGroupScores, "group score", name); }
Epilogue epilogue_of(const std::string& name) { return find(kEpilogues, "epilogue", name); }

const char* name_of(DType type) { return find_name(kTypes, type); }
const char* name_of(WeightFormat format) { return find_name(kFormats, format); }

}  // namespace headrace
