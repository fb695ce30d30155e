// Before the first paint, so that the page does not flash in the other theme.
(function () {
  var theme;
  try {
    theme = localStorage.getItem("sandbox:theme");
  } catch (e) {
    // no storage: the system's theme
  }
  if (theme !== "light" && theme !== "dark") theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = theme;
})();
