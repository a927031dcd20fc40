// Ranks what the search finds. conf.py adds sections to the index, as pages named "page#anchor".
var Scorer = {
  // A hit is a list: page, title, anchor, description, score, file, kind.
  score: (hit) => {
    const [name, , , , score, , kind] = hit, [page, section] = name.split("#");
    const isWholePage = kind === "text" && section === undefined;  // its words may be far apart
    if (section) hit[2] = `#${section}`;
    hit[0] = page;
    return score / (isWholePage ? 10 : 1) / (Scorer.forContributors.test(page) ? 4 : 1);
  },
  forContributors: /^(behaviours|benchmarks|changelog|contributing|design|formats\/.*|fuzzing|interop|profile|releasing)$/,

  // Sphinx's own scores.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
